"""Execute the notebooks and build the book from the executed copies."""
