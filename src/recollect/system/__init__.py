"""What runs below everything: files, random numbers, progress, the device."""
