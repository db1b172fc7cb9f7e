"""The program inside an attempt: holds the job's lease, builds the job, runs it, and says how it ended."""
