"""The staleness methods, one file each: settings and correction. A new file here is found by itself."""
