"""Tenants, namespaces, policies and permissions, changed in a log first (ADR 0031)."""
