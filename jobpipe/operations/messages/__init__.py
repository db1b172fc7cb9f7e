"""What all operations are made of: fields that are checked, requests, replies."""
