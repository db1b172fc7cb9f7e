"""The command line. Each command is a module; what is heavy (Spark, Arrow, the registry) is imported when it runs."""
