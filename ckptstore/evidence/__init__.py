"""Evidence of an unregistered file: which launch may have written it, of which step it is, and how sure that is."""
