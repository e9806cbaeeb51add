//! Aquifer room `zfuse`.
