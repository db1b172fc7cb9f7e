"""One topic that is served: its log's thread, subscribers, leases, holds, plans and flow jobs."""
