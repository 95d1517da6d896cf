"""The catalog's tables and queries: the only importer of SQLAlchemy."""
