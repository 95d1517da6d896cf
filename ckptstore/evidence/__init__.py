"""Evidence of an unregistered file: who may have written it, of which step it is, and how sure that is."""
