//! Workloads as scenarios write them, and what they come to: spaces and threads.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Program, apps, batch, build, fio, kv, launch, mix, simoop, sysbench, tpcc, trace, web, ycsb,
};
use crate::machine::Region;
use crate::machine::allocation::Allocation;

/// One workload of a scenario: a name, a memcg and the parameters of one generator.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkloadSpec {
    /// Its name.
    pub name: String,
    /// The memcg it is in; the first if none is named.
    pub memcg: Option<String>,
    /// Runs beside the others and is not measured.
    #[serde(default)]
    pub background: bool,
    /// A key-value store under a memtier-like load.
    pub key_value: Option<kv::KeyValue>,
    /// A database under YCSB.
    pub ycsb: Option<ycsb::Ycsb>,
    /// A database under TPC-C.
    pub tpcc: Option<tpcc::Tpcc>,
    /// A database under sysbench.
    pub sysbench: Option<sysbench::Sysbench>,
    /// Files read and written in blocks.
    pub fio: Option<fio::Fio>,
    /// Many short programs.
    pub build: Option<build::Build>,
    /// Batch jobs that sort.
    pub batch: Option<batch::Batch>,
    /// Applications and one user.
    pub apps: Option<apps::Apps>,
    /// Readers, writers and allocators.
    pub simoop: Option<simoop::Simoop>,
    /// A mapped file kept hot, and anonymous memory that comes and goes.
    pub mix: Option<mix::Mix>,
    /// Applications that are started from nothing, while services run.
    pub launch: Option<launch::Launch>,
    /// Browsers and the servers they load pages from.
    pub web: Option<web::Web>,
    /// A recording of one's own.
    pub trace: Option<trace::Trace>,
    /// The page allocator alone; it runs without the rest of the machine.
    pub allocation: Option<Allocation>,
}

/// What a space is made of.
#[derive(Clone, Debug)]
pub struct SpaceSpec {
    /// Whose pages they are.
    pub memcg: usize,
    /// Its regions, from page 0.
    pub regions: Vec<Region>,
}

/// A thread.
pub struct ThreadSpec {
    /// What it does.
    pub program: Box<dyn Program>,
    /// Its own space.
    pub home: usize,
    /// Whether its operations count.
    pub measured: bool,
}

/// A log that transactions end in.
#[derive(Clone, Copy, Debug)]
pub struct LogSpec {
    /// Its file's space, all of which is used in turn.
    pub space: u16,
    /// Pages of the file.
    pub size: u32,
    /// Pages of a transaction's records.
    pub pages: u32,
    /// Time of the writer for a transaction.
    pub ns: u32,
}

/// Everything that a scenario puts on the machine.
#[derive(Default)]
pub struct Plan {
    /// Spaces in order.
    pub spaces: Vec<SpaceSpec>,
    /// Threads in order.
    pub threads: Vec<ThreadSpec>,
    /// Barriers handed out.
    pub groups: u16,
    /// Logs.
    pub logs: Vec<LogSpec>,
}

/// Where a workload is put.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its memcg.
    pub memcg: usize,
    /// Pages that ratios refer to: the memcg's limit, or the machine's memory.
    pub memory: u64,
    /// The seed of its random numbers.
    pub seed: u64,
    /// Whether it is measured.
    pub measured: bool,
}

impl Place {
    /// `ratio` of memory in pages.
    #[must_use]
    pub fn pages(&self, ratio: f64) -> u64 {
        (self.memory as f64 * ratio).round().max(1.0) as u64
    }

    /// The seed of thread `thread` of workload part `part`.
    #[must_use]
    pub fn seed_of(&self, part: u64, thread: u64) -> u64 {
        let mix = ebb_mm::random::Random(self.seed ^ (part << 32) ^ (thread << 8)).word();
        mix ^ self.seed.rotate_left(17)
    }
}

impl Plan {
    /// Adds a space; returns its number.
    pub fn space(&mut self, memcg: usize, regions: Vec<Region>) -> u16 {
        self.spaces.push(SpaceSpec { memcg, regions });
        (self.spaces.len() - 1) as u16
    }

    /// Adds a thread.
    pub fn thread(&mut self, program: Box<dyn Program>, home: u16, measured: bool) {
        self.threads.push(ThreadSpec { program, home: usize::from(home), measured });
    }

    /// Adds a log; returns its number.
    pub fn log(&mut self, spec: LogSpec) -> u16 {
        self.logs.push(spec);
        (self.logs.len() - 1) as u16
    }

    /// A new barrier.
    pub fn group(&mut self) -> u16 {
        self.groups += 1;
        self.groups - 1
    }
}

macro_rules! generators {
    ($($name:literal $field:ident),*) => {
        impl WorkloadSpec {
            /// The names of the generators.
            pub const KINDS: &'static [&'static str] = &[$($name),*];

            /// Puts it on the machine.
            ///
            /// # Errors
            /// None or several generators.
            pub fn plan(&self, plan: &mut Plan, place: &Place) -> Result<(), String> {
                let mut made = 0;
                $(if let Some(spec) = &self.$field {
                    spec.plan(plan, place);
                    made += 1;
                })*
                if made == 1 {
                    return Ok(());
                }
                Err(format!(
                    "workload {:?}: expected one generator, of {}; it has {made}",
                    self.name,
                    Self::KINDS.join(", ")
                ))
            }
        }
    };
}

generators!["key-value" key_value, "ycsb" ycsb, "tpcc" tpcc, "sysbench" sysbench, "fio" fio, "build" build, "batch" batch,
    "apps" apps, "simoop" simoop, "mix" mix, "web" web, "launch" launch, "trace" trace];
