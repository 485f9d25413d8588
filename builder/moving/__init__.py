"""Files, images and projects from and to other places: copies, archives, machines, migration."""
