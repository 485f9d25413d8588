"""What is in two images, and what differs."""
