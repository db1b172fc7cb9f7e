"""A checked pipeline: jobs, graph, routes, paths, states."""
