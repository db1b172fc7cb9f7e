"""The coordinator in the registry: claims, epochs, registrations, host servers."""
