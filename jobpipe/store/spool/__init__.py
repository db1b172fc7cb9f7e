"""Files of the spool: segments, their index, folders."""
