"""A real ZooKeeper for one computer, started with the first job."""
