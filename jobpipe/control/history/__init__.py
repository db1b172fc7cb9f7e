"""How topics, subscriptions and jobs stood over the last day: what the plots of the control server's page are of."""
