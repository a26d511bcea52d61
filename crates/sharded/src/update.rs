//! What an owner does with the gradients of all ranks, and what it must tell others for it.
//!
//! - A shard with whole rows is updated at once.
//! - A shard with some columns, under a rule that needs a sum over the row, takes turns with the holders of the
//!   other columns: each tells the others its sums of squares by column block, and all add them up in block order.
//! - A mirrored table's new rows go to every rank.

use campanile_comm::{Buffer, CommError, Communicator};
use campanile_kernels::{Isa, update::Merged};
use campanile_spec::{COLUMN_BLOCK, Plan, Shard};
use campanile_tables::{GradientBlock, Table, UpdateReport, UpdateScratch, UpdateStep};

use crate::route::Route;

/// Which shards of a rank need to hear from others, or others from them.
pub(crate) struct Owned {
    /// By shard of this rank: all column ranges of its table and rows, in order.
    siblings: Vec<Vec<Sibling>>,
    /// By rank: its shards that share rows with one here, in its order, with the place of the one here.
    heard: Vec<Vec<Heard>>,
    /// By shard of this rank: its table's place among the mirrored ones.
    mirrors: Vec<Option<usize>>,
    /// Whether any rank has a shard with a part of a row: then all take part in the exchange.
    any_columns: bool,
}

struct Sibling {
    rank: usize,
    shard: usize,
}

struct Heard {
    shard: usize,
    here: usize,
    blocks: usize,
}

/// Memory of updates, kept from step to step.
#[derive(Default)]
pub(crate) struct Scratch {
    update: UpdateScratch,
    merged: Vec<Merged>,
    squares: Vec<f32>,
    /// By shard: the rows that moved, for mirrored tables.
    touched: Vec<Vec<u32>>,
}

impl Owned {
    pub fn new(plan: &Plan, route: &Route, rank: usize) -> Owned {
        let own: Vec<_> = plan.shards_of(rank).collect();
        let shares = |a: &(_, &Shard), b: &(_, &Shard)| a.0 == b.0 && a.1.rows == b.1.rows;
        let mut siblings: Vec<Vec<(usize, Sibling)>> = own.iter().map(|_| Vec::new()).collect();
        let mut heard = Vec::new();
        for other in 0..plan.rank_count {
            let mut from = Vec::new();
            for (shard, theirs) in plan.shards_of(other).enumerate() {
                let mut here = None;
                for (place, _) in own.iter().enumerate().filter(|(_, ours)| shares(ours, &theirs)) {
                    siblings[place].push((theirs.1.columns.start, Sibling { rank: other, shard }));
                    here = here.or(Some(place));
                }
                if let Some(here) = here {
                    let blocks = theirs.1.columns.len().div_ceil(COLUMN_BLOCK);
                    from.push(Heard { shard, here, blocks });
                }
            }
            heard.push(from);
        }
        siblings.iter_mut().for_each(|siblings| siblings.sort_by_key(|(start, _)| *start));
        let in_order = |siblings: Vec<(usize, Sibling)>| siblings.into_iter().map(|(_, s)| s).collect();
        let mirror = |table: usize| route.mirrored.iter().position(|mirrored| mirrored.table == table);
        Owned {
            siblings: siblings.into_iter().map(in_order).collect(),
            heard,
            mirrors: own.iter().map(|(table, _)| mirror(table.0 as usize)).collect(),
            any_columns: plan.placements.iter().any(|placement| placement.column_cuts().len() > 2),
        }
    }

    /// Updates every shard. `blocks` gives a shard's gradients, whose rows were looked up before.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn update<'a>(
        &self,
        comm: &dyn Communicator,
        shards: &mut [Table],
        blocks: &dyn Fn(usize) -> Vec<GradientBlock<'a>>,
        (step, isa): (&UpdateStep, Isa),
        scratch: &mut Scratch,
    ) -> Result<UpdateReport, CommError> {
        const HELD: &str = "a row that was looked up is held";
        let mut total = UpdateReport::default();
        scratch.merged.resize_with(shards.len(), Merged::default);
        scratch.touched.resize_with(shards.len(), Vec::new);
        let turns: Vec<bool> = shards.iter().map(|shard| shard.needs_sums(step)).collect();
        for (place, shard) in shards.iter_mut().enumerate() {
            let blocks = blocks(place);
            let report = if turns[place] {
                shard.merge(&blocks, &mut scratch.update, &mut scratch.merged[place]).expect(HELD)
            } else {
                shard.update(&blocks, step, &mut scratch.update).expect(HELD)
            };
            total.ids_seen += report.ids_seen;
            total.rows_touched += report.rows_touched;
            if self.mirrors[place].is_some() {
                scratch.touched[place].clear();
                scratch.update.touched(shard, &mut scratch.touched[place]);
            }
        }
        if self.any_columns {
            self.take_turns(comm, shards, &turns, (step, isa), scratch)?;
        }
        Ok(total)
    }

    fn take_turns(
        &self,
        comm: &dyn Communicator,
        shards: &mut [Table],
        turns: &[bool],
        (step, isa): (&UpdateStep, Isa),
        scratch: &mut Scratch,
    ) -> Result<(), CommError> {
        let Scratch { merged, squares, .. } = scratch;
        let limits = if step.row_norm_max > 0.0 {
            self.sums_over_rows(comm, turns, (merged, isa), squares)?
        } else {
            vec![Vec::new(); shards.len()]
        };
        for place in (0..shards.len()).filter(|place| turns[*place]) {
            shards[place].limit(&mut merged[place], step, &limits[place]);
        }
        let sums = self.sums_over_rows(comm, turns, (merged, isa), squares)?;
        for place in (0..shards.len()).filter(|place| turns[*place]) {
            let dim = shards[place].spec().dim as f32;
            let means: Vec<f32> = sums[place].iter().map(|sum| sum / dim).collect();
            shards[place].apply(&merged[place], step, &means);
        }
        Ok(())
    }

    /// The sum of squares over whole rows, for every touched row of every shard that takes turns.
    fn sums_over_rows(
        &self,
        comm: &dyn Communicator,
        turns: &[bool],
        (merged, isa): (&[Merged], Isa),
        squares: &mut Vec<f32>,
    ) -> Result<Vec<Vec<f32>>, CommError> {
        // Every holder sees the same ids, so all have the same rows in the same order and need not name them.
        let mut messages: Vec<Vec<f32>> = vec![Vec::new(); comm.rank_count()];
        let taking = || self.siblings.iter().enumerate().filter(|(place, _)| turns[*place]);
        for (place, siblings) in taking() {
            squares.clear();
            merged[place].squares(isa, squares);
            for (rank, message) in messages.iter_mut().enumerate() {
                if siblings.iter().any(|sibling| sibling.rank == rank) {
                    message.extend_from_slice(squares);
                }
            }
        }
        let received = comm.all_to_all(messages.iter().map(|message| Buffer::of(message)).collect())?;
        let mut sums: Vec<Vec<f32>> = vec![Vec::new(); self.siblings.len()];
        for (place, siblings) in taking() {
            let rows = merged[place].rows().len();
            let part = |sibling: &Sibling| {
                let mut at = 0;
                for heard in self.heard[sibling.rank].iter().filter(|heard| turns[heard.here]) {
                    let floats = merged[heard.here].rows().len() * heard.blocks;
                    if heard.shard == sibling.shard {
                        let values = received[sibling.rank].values::<f32>();
                        return (&values[at..at + floats], heard.blocks);
                    }
                    at += floats;
                }
                unreachable!("a sibling is among those heard")
            };
            let parts: Vec<(&[f32], usize)> = siblings.iter().map(part).collect();
            sums[place].extend((0..rows).map(|row| {
                let blocks = parts.iter().flat_map(|(part, blocks)| &part[row * blocks..][..*blocks]);
                blocks.fold(0.0, |sum, block| sum + block)
            }));
        }
        Ok(sums)
    }

    /// Sends the rows of mirrored tables that this rank has updated to all ranks, and takes theirs.
    ///
    /// # Errors
    /// When a rank has left.
    pub fn refresh_mirrors(
        &self,
        comm: &dyn Communicator,
        shards: &[Table],
        mirrors: &mut [Table],
        scratch: &Scratch,
    ) -> Result<(), CommError> {
        if mirrors.is_empty() {
            return Ok(());
        }
        let mut message = Vec::new();
        for (place, shard) in shards.iter().enumerate() {
            let Some(mirror) = self.mirrors[place] else { continue };
            let rows = &scratch.touched[place];
            message.extend_from_slice(&(mirror as u32).to_ne_bytes());
            message.extend_from_slice(&(rows.len() as u32).to_ne_bytes());
            message.extend_from_slice(bytemuck::cast_slice(rows));
            let start = message.len();
            message.resize(start + rows.len() * row_bytes(shard), 0);
            shard.copy_out(rows, &mut message[start..]).expect("a row that moved is held");
            // Words stay aligned behind rows of an odd number of halves.
            message.resize(message.len().next_multiple_of(4), 0);
        }
        for message in comm.all_gather(Buffer::of(&message))? {
            let mut bytes = message.bytes();
            while !bytes.is_empty() {
                let (head, rest) = bytes.split_at(8);
                let head: &[u32] = bytemuck::cast_slice(head);
                let (mirror, count) = (&mut mirrors[head[0] as usize], head[1] as usize);
                let (rows, rest) = rest.split_at(count * 4);
                let value_bytes = count * row_bytes(mirror);
                mirror.copy_in(bytemuck::cast_slice(rows), &rest[..value_bytes]);
                bytes = &rest[value_bytes.next_multiple_of(4)..];
            }
        }
        Ok(())
    }
}

fn row_bytes(table: &Table) -> usize {
    table.columns().len() * table.spec().format.element_bytes()
}
