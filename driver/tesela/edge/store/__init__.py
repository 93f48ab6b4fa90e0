"""The files that outlive the driver: records, roster, locks, CDI and metadata files. No decision is taken here."""
