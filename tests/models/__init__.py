"""Searching the models of specs/models with spin."""
