"""Services that all other packages use: files, random numbers, progress and the device."""
