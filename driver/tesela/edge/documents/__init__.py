"""Documents between bytes and our own types: records, roster, opaque configs, claims. Strict where the text is ours."""
