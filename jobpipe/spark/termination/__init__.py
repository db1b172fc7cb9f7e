"""How queries and jobs end: signals, ``stop``, the ends of topics, a JVM that dies."""
