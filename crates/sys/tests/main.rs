//! Tests of the kernel's interfaces on the running kernel.

mod memory;
mod uffd;
