"""The optimizer rules, one file each: settings and update. A new file here is found by itself."""
