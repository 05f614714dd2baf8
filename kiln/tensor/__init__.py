"""What the compiler knows of a tensor: its dtype and its layout."""
