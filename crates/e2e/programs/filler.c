// Fills 40 MiB and adds them up three times over.

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    size_t const bytes = (size_t)40 << 20;
    unsigned char *table = malloc(bytes);
    unsigned long sum = 0;

    if (!table)
        return 1;
    for (size_t at = 0; at < bytes; at += 4096)
        table[at] = (unsigned char)(at >> 12);
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at < bytes; at += 4096)
            sum += table[at];
    printf("sum %lu\n", sum);
    free(table);
    return 0;
}
