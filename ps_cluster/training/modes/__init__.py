"""The modes, one file each: settings, slice, work. A new file here is found by itself."""
