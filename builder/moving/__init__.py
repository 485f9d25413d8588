"""Files, images and projects move between places: copies, archives, machines, migration."""
