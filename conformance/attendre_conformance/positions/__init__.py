"""Position schemes: the cases, and their laws."""
