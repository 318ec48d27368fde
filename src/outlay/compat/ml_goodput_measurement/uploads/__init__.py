"""What a monitor uploads: readings of a job, their destinations, and the uploader's process."""
