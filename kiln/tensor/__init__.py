"""What a tensor is before it exists: its dtype and its layout."""
