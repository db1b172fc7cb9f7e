"""OpenLineage events of jobs: what each run reads and writes, sent to a backend or a file. Loaded only if wanted."""
