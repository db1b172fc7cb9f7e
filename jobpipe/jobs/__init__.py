"""The life of a job's attempts: launched, supervised, restarted, stopped; their programs and their alerts."""
