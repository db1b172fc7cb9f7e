"""What an attempt runs: a query, a flow job or an application; and why and where it ends."""
