"""Commands for pipelines: run one here, submit it to a server, plan, schedule, watch its jobs."""
