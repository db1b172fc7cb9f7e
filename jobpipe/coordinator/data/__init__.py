"""The data process: streams segments to readers, and takes segments from tasks."""
