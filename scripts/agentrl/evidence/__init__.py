"""What stands behind every number: files written in one step, stages with manifest and provenance, hashes, freezes, the ledger of looks.

Owns how a record is written, found and checked, and where things lie in a study's folder. Uses no other wing. Everybody may call it.
"""
