"""Commands that look at topics and subscriptions, and change them."""
