"""The catalog: SQLite tables of batches, schemas, epochs, marks."""
