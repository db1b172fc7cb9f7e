"""Schedules by themselves: at which moments intervals end, and what is to be done now. Pure; knows no store."""
