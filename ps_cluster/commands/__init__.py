"""The commands of the command line, a module each. Importing one is quick; what is heavy is imported when it runs."""
