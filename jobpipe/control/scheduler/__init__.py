"""What makes runs of schedules: engines that fire, the scheduler that decides, and holds of what runs still need."""
