// Fills 48 MiB in small pieces, each of which only a piece can reach, and checks them: a leak sanitizer goes through all
// of them when the program ends, in a process that shares its memory and has stopped its threads.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct piece {
    struct piece *next;
    unsigned char bytes[4072];
};

static struct piece *volatile first;

int main(void)
{
    unsigned long sum = 0;

    for (size_t count = 0; count < 12288; count++) {
        struct piece *piece = malloc(sizeof *piece);
        if (!piece)
            return 1;
        memset(piece->bytes, (int)(count & 0xff), sizeof piece->bytes);
        piece->next = first;
        first = piece;
    }
    for (struct piece *piece = first; piece; piece = piece->next)
        for (size_t at = 0; at < sizeof piece->bytes; at += 1018)
            sum += piece->bytes[at];
    printf("sum %lu\n", sum);
    return 0;
}
