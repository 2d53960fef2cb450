//! The kernel's interfaces, tried on this kernel.

mod memory;
mod uffd;
