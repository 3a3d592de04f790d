//! The REST objects of E2B (`e2b.md` A.6): field names are the contract.
