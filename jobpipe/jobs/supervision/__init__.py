"""Keeps a job in the state that is wanted: launches attempts, observes, assesses and restarts them."""
