"""The pipeline's file: values with their lines, interpolation, the models of its sections, problems."""
