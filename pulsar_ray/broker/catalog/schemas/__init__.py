"""The schemas of topics: versions, which of them fit together, who registered them (ADR 0126)."""
