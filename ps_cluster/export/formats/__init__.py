"""The formats of exported models."""
